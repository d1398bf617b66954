"""The command line: fit and the other commands, configs by name, one clear line for an error."""
