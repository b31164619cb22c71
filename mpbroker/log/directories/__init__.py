"""Log directories as a whole: journals, reserve, what the last run left there."""
