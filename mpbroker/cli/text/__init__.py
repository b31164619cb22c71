"""What commands read and write as text: tables, JSON, times, progress, questions."""
