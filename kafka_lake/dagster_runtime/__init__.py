"""What leans on private parts of Dagster. Everything works without it, only slower.

With a version that wasn't tested (`kafka_lake.common.tested_versions`), nothing of it is touched.
"""
