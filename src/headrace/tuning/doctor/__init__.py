"""What measures a loop, a step or a mixture for a verdict (`headrace.measure.verdict`)."""

from headrace.tuning.doctor.step import StepExamination, examine_step
from headrace.tuning.doctor.watch import Doctor

__all__ = ["Doctor", "StepExamination", "examine_step"]
