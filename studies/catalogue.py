"""All studies by name."""

from studies.declaration import Study
from studies.declared import digits, tce

STUDIES: dict[str, Study] = {study.name: study for module in (digits, tce) for study in module.STUDIES}
