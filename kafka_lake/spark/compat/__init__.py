"""What leans on private parts of PySpark, each with what happens without it. PySpark's public parts need no place.

With a version that wasn't tested (`kafka_lake.common.tested_versions`), nothing of it is touched.
"""
