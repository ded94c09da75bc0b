"""Kubernetes' own words: object shapes, resources, quantities, patches, admission reviews, extender calls."""
