"""The command line: fit and its friends, configs by name, one clear line for an error."""
