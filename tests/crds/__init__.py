"""`make crds` writes the CRDs, their copy in the chart and their reference from the models."""
