"""What `make run` shows: a pipeline on Spark that is killed again and again, and counts each row
once.
"""
