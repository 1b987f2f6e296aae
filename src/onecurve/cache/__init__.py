"""A cache of remote files on the host's disk: one process per host fetches what will be read next, from the store or
from other hosts of the job."""
