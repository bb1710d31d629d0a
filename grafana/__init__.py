"""Dashboards as code: `python -m grafana` writes grafana/dashboards, `python -m grafana.preview` draws them."""
