"""The data types that all packages exchange: plan, mesh, cluster, profile, estimate, record. Frozen dataclasses.

This package knows the text, TOML and JSON forms of these types and rejects unknown keys and wrong types. It must not
import torch or any other package of onecurve, and it computes no more than what follows from one value alone. Start
reading with plan.py; convert.py does the conversion to and from plain data.
"""
