"""Starts the ranks of one host and watches them. torch's elastic agent does the work, with a rendezvous of our own.

Start with local.py; rendezvous.py says where ranks meet, failure.py what is said when one of them fails.
"""
