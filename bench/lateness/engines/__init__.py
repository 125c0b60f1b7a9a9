"""Who does the work: processes of this machine or Spark, and the job that either is given."""
