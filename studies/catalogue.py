"""All studies by name."""

from studies.declaration import Study
from studies.declared import arriving_classes, digits, fedreg, fedweit, flashback, forgetting, headline, personal, tce

_MODULES = (digits, tce, fedweit, fedreg, flashback, forgetting, arriving_classes, personal, headline)
STUDIES: dict[str, Study] = {study.name: study for module in _MODULES for study in module.STUDIES}
