"""Pictures of the dashboards, drawn from the data of a real Prometheus: what an operator will see, without a Grafana.

The layout, titles, units, legends, colours and thresholds are read from the JSON, never from the code that made it.
"""
