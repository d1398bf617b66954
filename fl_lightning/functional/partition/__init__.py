"""Partitions of a labelled dataset among clients.

Every function takes the labels of all samples, shape (n,), and returns one int64 index tensor per client; these can be views of
one tensor. No index appears twice. The result depends only on the arguments.
"""
