"""Jobs on the data source, each a module: `python -m spark_integration.jobs.<job>`, or spark-submit."""
