"""Config files: those that come with the package, and how one is read with those that it is based on."""
