"""What a settings file may say about the log and about traces."""

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from gateway.settings.section import Section
from gateway.settings.values import NonEmpty, Secret, check_url

LogLevel = Literal["debug", "info", "warning", "error"]
# Where a collector takes traces over HTTP.
_TRACES_PATH: Final = "/v1/traces"


def _check_endpoint(url: str) -> str:
    """The whole URL. A collector's address alone, as OTEL_EXPORTER_OTLP_ENDPOINT has it, is enough."""
    url = check_url(url)
    return url if url.endswith(_TRACES_PATH) else url + _TRACES_PATH


class Log(Section):
    format: Literal["text", "json"] = Field(
        default="text", description="text, or json: one object a line, with ids as fields."
    )
    level: LogLevel = Field(
        default="info",
        description="debug, info, warning or error; debug has a line for each request. See --log-level.",
    )


class Embeddings(Section):
    """Search over originals by meaning, too."""

    upstream: NonEmpty | None = Field(
        default=None,
        description="One of upstreams, which gets the texts of originals; null: search by words alone.",
    )
    model: NonEmpty | None = Field(
        default=None, description="Its model for /v1/embeddings. Needs [embeddings]."
    )


class Traces(Section):
    endpoint: Annotated[str, AfterValidator(_check_endpoint)] | None = Field(
        default=None,
        description="OTLP collector (HTTP), such as http://127.0.0.1:4318; null: no traces. Needs [otel].",
    )
    headers: dict[NonEmpty, Secret] = Field(
        default_factory=dict, description="Headers of the requests to it, such as its key."
    )
    sample: Annotated[float, Field(ge=0, le=1)] = Field(
        default=1.0,
        description="Share of traces that is sent; a trace that a client began follows the client.",
    )
    service: NonEmpty = Field(default="context-window-gateway", description="Its service.name in traces.")
