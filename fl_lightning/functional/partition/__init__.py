"""Partitions of a labelled data set among clients.

Every function takes the labels of all samples, shape (n,), and returns one int64 index tensor a client; these may be views
of one tensor. No index appears twice. The result is a function of the arguments alone.
"""
