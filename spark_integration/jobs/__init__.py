"""Jobs on the data source, one module each: `python -m spark_integration.jobs.<job>`, or spark-submit."""
