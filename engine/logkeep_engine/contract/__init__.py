"""The ground that the operator and the engine share: resource specs, run documents, names. The operator imports nothing
else of the engine.
"""
