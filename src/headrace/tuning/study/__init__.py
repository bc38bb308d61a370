"""Studies: a ladder, grid or list of guarded runs, one table, one decision.

study = read_study("param_ladder", overrides=["root=/data/oxe"])
found = run_study(study, Path("studies/param_ladder"))
print(found.decision.words)
"""

from headrace.tuning.study.document import Study, packaged_studies, plan, read_study
from headrace.tuning.study.run import Finished, run_study

__all__ = ["Finished", "Study", "packaged_studies", "plan", "read_study", "run_study"]
