"""Grafana dashboards as code, and their generated JSON."""
