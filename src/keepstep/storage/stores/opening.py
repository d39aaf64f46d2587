"""From an address to the store behind it. Credentials come from where each kind of storage usually has them."""

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keepstep.config.address import Address
from keepstep.errors import ConfigError
from keepstep.storage.stores.base import Store
from keepstep.storage.stores.folder import FolderStore

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_YES = ("1", "true", "yes", "on")


def open_store(address: Address) -> Store:
    """Open the store at an address. Nothing is asked of it yet.

    Raises:
        ConfigError: a library for it is missing, or it cannot be used as it is configured.
    """
    if address.scheme == "file":
        return FolderStore(Path(address.path))
    if address.scheme == "hf":
        if importlib.util.find_spec("huggingface_hub") is None:
            raise ConfigError(f"{address}: needs huggingface_hub; pip install 'keepstep[hf]'")
        from keepstep.storage.stores.hub import open_hub

        return open_hub(address)
    if address.is_read_only:
        from keepstep.storage.stores.web import WebStore

        return WebStore(address)
    return _objects(address)


def _objects(address: Address) -> Store:
    # Here, so that nobody loads a client who has no use for it.
    from obstore.exceptions import BaseError

    from keepstep.storage.stores.objects import CLIENT, RETRIES, ObjectsStore, safe_text

    options: dict[str, Any] = {"client_options": dict(CLIENT), "retry_config": RETRIES}
    # Without TLS only where somebody says so, as the clients of these stores are told it.
    allowed = (os.environ.get(f"{name}_ALLOW_HTTP", "") for name in ("AWS", "GOOGLE", "AZURE"))
    options["client_options"]["allow_http"] = any(one.lower() in _YES for one in allowed)
    if address.scheme == "s3" and (provider := _profile_credentials()) is not None:
        options["credential_provider"] = provider
    try:
        store = _store_of(address, options)
    except (BaseError, ValueError) as error:
        raise ConfigError(f"{address}: {safe_text(error)}") from None  # its own text may show what is secret
    return ObjectsStore(store, str(address), tags_are_md5=address.scheme == "s3")


def _store_of(address: Address, options: dict[str, Any]) -> "ObjectStore":
    """By its parts: as a URL, `#` and `%` in a name would lead to another folder."""
    from obstore.store import AzureStore, GCSStore, S3Store

    prefix = address.path or None
    match address.scheme:
        case "s3":
            return S3Store(address.place, prefix=prefix, **options)
        case "gs":
            return GCSStore(address.place, prefix=prefix, **options)
        case _:
            return AzureStore(address.place, prefix=prefix, **options)


def _profile_credentials() -> Any:
    """Of ~/.aws, where boto3 is installed to read it and the environment holds no keys; else None."""
    if os.environ.get("AWS_ACCESS_KEY_ID") or os.environ.get("AWS_SKIP_SIGNATURE"):
        return None
    places = (("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), ("AWS_CONFIG_FILE", "~/.aws/config"))
    # Without a home the path stays as it is, and is no file.
    has_file = any(os.path.isfile(os.path.expanduser(os.environ.get(name, default))) for name, default in places)
    if not has_file or importlib.util.find_spec("boto3") is None:
        return None
    from obstore.auth.boto3 import Boto3CredentialProvider

    return Boto3CredentialProvider()
