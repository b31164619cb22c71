"""Log directories as a whole: identity, journals, reserve, what the last run left there."""
