"""The facts of a run: the driver fills these models, the operator checks them by parsing and puts them into the status
as they are, the plugin prints them.

A fact has its bounds, and the sentence that users read of it, next to its name: `make crds` writes the CRDs and their
reference from here.
"""
