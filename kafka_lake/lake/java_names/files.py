"""Which of Iceberg's Java classes reads and writes the files at an address. Pure."""

S3_FILES = "org.apache.iceberg.aws.s3.S3FileIO"
AZURE_FILES = "org.apache.iceberg.azure.adlsv2.ADLSFileIO"
GOOGLE_FILES = "org.apache.iceberg.gcp.gcs.GCSFileIO"

_FILES = {
    **dict.fromkeys(("s3", "s3a", "s3n"), S3_FILES),
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs"), AZURE_FILES),
    "gs": GOOGLE_FILES,
}


def files_class(scheme: str) -> str | None:
    """Return the Java class for files at addresses of this scheme; None if it is none of a cloud's.

    >>> files_class("s3a")
    'org.apache.iceberg.aws.s3.S3FileIO'
    """
    return _FILES.get(scheme)
