"""Settings of Azure's storage reach Java in its names, or are refused by their own."""

import pytest

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.lake.catalog import LakeCatalog

REST = {"type": "rest", "uri": "http://r"}
AZURE = {**REST, "warehouse": "abfss://lake@acme.dfs.core.windows.net/w"}
CHINA = {**REST, "warehouse": "abfss://lake@acme.dfs.core.chinacloudapi.cn/w"}
# A warehouse that is a name says nothing of the account.
NAMED = {**REST, "warehouse": "lake", "io-impl": "org.apache.iceberg.azure.adlsv2.ADLSFileIO"}


def spark(properties):
    conf = LakeCatalog("lake", properties).spark_conf()
    return {key.removeprefix("spark.sql.catalog.lake."): value for key, value in conf.items()}


def storage(properties):
    return {key: value for key, value in spark(properties).items() if key.startswith("adls.")}


def shared_key(name):
    return {"adls.auth.shared-key.account.name": name, "adls.auth.shared-key.account.key": "hush"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({**AZURE, "adls.account-name": "acme", "adls.account-key": "hush"}, shared_key("acme")),
        ({**AZURE, "adls.account-key": "hush"}, shared_key("acme")),
        ({**NAMED, "adls.account-name": "acme", "adls.account-key": "hush"}, shared_key("acme")),
        (
            {**AZURE, "adls.account-name": "acme", "adls.sas-token": "sv=1"},
            {"adls.sas-token.acme.dfs.core.windows.net": "sv=1"},
        ),
        ({**AZURE, "adls.sas-token": "sv=1"}, {"adls.sas-token.acme.dfs.core.windows.net": "sv=1"}),
        (
            {**NAMED, "adls.account-name": "acme", "adls.sas-token": "sv=1"},
            {"adls.sas-token.acme.dfs.core.windows.net": "sv=1"},
        ),
        (
            {**CHINA, "adls.sas-token": "sv=1", "adls.account-host": "acme.blob.core.chinacloudapi.cn"},
            {"adls.sas-token.acme.dfs.core.chinacloudapi.cn": "sv=1"},
        ),
        (
            {
                **CHINA,
                "adls.sas-token": "sv=1",
                "adls.dfs-storage-authority": ".dfs.core.chinacloudapi.cn",
                "adls.blob-storage-authority": ".blob.core.chinacloudapi.cn",
                "adls.dfs-storage-scheme": "https",
            },
            {"adls.sas-token.acme.dfs.core.chinacloudapi.cn": "sv=1"},
        ),
        (
            {**NAMED, "adls.sas-token": "sv=1", "adls.account-host": "acme.blob.core.chinacloudapi.cn"},
            {"adls.sas-token.acme.dfs.core.chinacloudapi.cn": "sv=1"},
        ),
        (
            {
                **NAMED,
                "adls.account-name": "acme",
                "adls.sas-token": "sv=1",
                "adls.dfs-storage-authority": ".dfs.core.chinacloudapi.cn",
            },
            {"adls.sas-token.acme.dfs.core.chinacloudapi.cn": "sv=1"},
        ),
    ],
)
def test_settings_of_azure_s_storage_reach_java(given, told):
    assert storage(given) == told
    assert spark(given)["io-impl"] == NAMED["io-impl"]


def test_settings_of_azure_s_storage_stay_as_they_are_where_it_is_not_known_to_be_used():
    settings = {"adls.client-secret": "hush", "adls.sas-token": "sv=1"}
    assert storage({**REST, "warehouse": "lake", **settings}) == settings


@pytest.mark.parametrize(
    ("given", "said", "remedy"),
    [
        ({**AZURE, "adls.client-secret": "hush"}, "adls.client-secret", "AZURE_CLIENT_SECRET"),
        ({**NAMED, "adls.client-secret": "hush"}, "adls.client-secret", "AZURE_CLIENT_SECRET"),
        ({**NAMED, "adls.sas-token": "hush"}, "the account that adls.sas-token is for", "adls.account-name"),
        ({**NAMED, "adls.account-key": "hush"}, "the account that adls.account-key is for", "adls.account-name"),
        ({**AZURE, "adls.connection-string": "AccountKey=hush"}, "adls.connection-string", "adls.account-key"),
        ({**REST, "adls.connection-string": "AccountKey=hush"}, "adls.connection-string", "adls.account-key"),
        ({**AZURE, "adls.credential": "hush"}, "adls.credential", "adls.account-key"),
        ({**AZURE, "adls.anon": "true"}, "adls.anon", "adls.account-key"),
        ({**AZURE, "adls.dfs-storage-scheme": "http"}, "adls.dfs-storage-scheme", "Leave it out"),
        ({**AZURE, "adls.account-name": "other"}, "adls.account-name is other", "Correct one"),
        ({**AZURE, "adls.account-host": "acme.blob.core.chinacloudapi.cn"}, "adls.account-host", "Correct one"),
        ({**AZURE, "adls.dfs-storage-authority": ".dfs.x.cn"}, "adls.dfs-storage-authority", "Correct one"),
        (CHINA, "in the public cloud", "adls.account-host to acme.blob.core.chinacloudapi.cn"),
    ],
)
def test_what_java_can_not_be_told_is_refused_with_what_to_do(given, said, remedy):
    with pytest.raises(ConfigurationError) as refused:
        spark(given)
    assert said in refused.value.message
    assert remedy in refused.value.remedy
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("given", [{}, {"adls.account-name": "acme", "adls.account-key": "hush"}])
def test_an_address_without_an_account_is_refused_with_how_to_write_it(given):
    with pytest.raises(ConfigurationError, match="its warehouse names no account") as refused:
        spark({**REST, "warehouse": "abfss://lake/w", **given})
    assert f"abfss://CONTAINER@{'acme' if given else 'ACCOUNT'}.dfs.core.windows.net/PATH" in refused.value.remedy
