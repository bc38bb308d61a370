"""What limits a run: measured, judged by small rules, said in plain words."""

from headrace.tuning.doctor.evidence import Evidence, SourceCost
from headrace.tuning.doctor.rules import give_verdict
from headrace.tuning.doctor.step import StepExamination, examine_step
from headrace.tuning.doctor.text import verdict_text
from headrace.tuning.doctor.verdict import Change, Verdict
from headrace.tuning.doctor.watch import Doctor

__all__ = [
    "Change",
    "Doctor",
    "Evidence",
    "SourceCost",
    "StepExamination",
    "Verdict",
    "examine_step",
    "give_verdict",
    "verdict_text",
]
