"""All studies by name."""

from studies.declaration import Study
from studies.declared import arriving_classes, digits, tce

STUDIES: dict[str, Study] = {study.name: study for module in (arriving_classes, digits, tce) for study in module.STUDIES}
