"""Links of a page hold on the code host and on the documentation site."""

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

HOOKS = Path(__file__).parents[2] / ".ci" / "mkdocs_hooks.py"
PAGES = {"guarantees.md", "images/freshness.png"}


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mkdocs_hooks", HOOKS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def on_site(hooks: ModuleType, page: str, markdown: str, repo_url: str | None = None) -> str:
    files = SimpleNamespace(get_file_from_path=lambda path: path if path in PAGES else None)
    config: Any = SimpleNamespace(repo_url=repo_url)
    shown: str = hooks.on_page_markdown(markdown, SimpleNamespace(file=SimpleNamespace(src_uri=page)), config, files)
    return shown


@pytest.mark.parametrize(
    ("page", "markdown", "shown"),
    [
        ("index.md", "[a](docs/guarantees.md#the-promises)", "[a](guarantees.md#the-promises)"),
        ("index.md", "![a chart](docs/images/freshness.png)", "![a chart](images/freshness.png)"),
        ("index.md", "[a](CONTRIBUTING.md)", "[a](contributing.md)"),
        ("changelog.md", "[a](docs/guarantees.md)", "[a](guarantees.md)"),
        ("faq.md", "[a](../README.md), [b](guarantees.md)", "[a](index.md), [b](guarantees.md)"),
        ("faq.md", "[a](#below), [b](https://example.com/x.md)", "[a](#below), [b](https://example.com/x.md)"),
        ("faq.md", "[a pipeline](../kafka_lake/ingest/pipeline.py)", "a pipeline"),
        ("faq.md", "```text\n[a](../README.md)\n```", "```text\n[a](../README.md)\n```"),
    ],
)
def test_links_lead_to_the_same_page_on_the_site(hooks: ModuleType, page: str, markdown: str, shown: str) -> None:
    assert on_site(hooks, page, markdown) == shown


def test_file_outside_the_site_is_linked_to_the_code_host(hooks: ModuleType) -> None:
    shown = on_site(hooks, "faq.md", "[a](../.env.example)", "https://code.example.com/kafka_lake/")
    assert shown == "[a](https://code.example.com/kafka_lake/blob/HEAD/.env.example)"


def test_a_link_to_nothing_is_a_warning(hooks: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    assert on_site(hooks, "index.md", "[a](docs/no-such-page.md)") == "[a](docs/no-such-page.md)"
    assert caplog.messages == ["README.md links to docs/no-such-page.md, and there is no docs/no-such-page.md."]
