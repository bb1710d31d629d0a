"""KEDA's and the HorizontalPodAutoscaler's rules in Python: what they would admit, and how they would scale.

Nothing here talks to a cluster. It checks manifests before they are applied, and plays out what they would do.
"""
