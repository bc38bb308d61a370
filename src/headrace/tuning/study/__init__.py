"""Studies: a list, a grid or a ladder of runs, guarded, repeated, logged and decided.

study = read_study("param_ladder")
trials = plan(study, ["root=/data/oxe"], cpus=allowed_cpus())
found = run_study(trials, Path("studies/param_ladder"), About.of(study), guard=study.guard,
                  repeats=study.repeats)
print(found.decision.words)
"""

from headrace.tuning.study.about import About
from headrace.tuning.study.document import Study, packaged_studies, read_study
from headrace.tuning.study.plan import plan
from headrace.tuning.study.run import Finished, run_study

__all__ = ["About", "Finished", "Study", "packaged_studies", "plan", "read_study", "run_study"]
