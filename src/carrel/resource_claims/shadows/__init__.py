"""Claims in Carrel's own namespace that show to schedulers what pods hold. The controller writes them.

shadow_words     PURE: how a shadow claim looks, and which a node should have
shadow_claims    keeps them in step with what pods hold
"""
