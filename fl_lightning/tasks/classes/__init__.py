"""Methods for one global model whose classes arrive task by task, one file each."""
