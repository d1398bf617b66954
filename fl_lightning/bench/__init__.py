"""forgetbench: federations that are fixed to the byte, a results file for each method, and one table of anybody's files."""
