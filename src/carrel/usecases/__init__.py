"""The verbs, one module each: core decisions + ports. No library names."""
