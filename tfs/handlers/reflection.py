"""grpc.reflection, v1 and v1alpha: lets tools list and describe the services.

Both versions have the same messages under another package name; one handler serves
either, given the generated module. Answers come from our private descriptor pool.

A question of thirty bytes may be answered with forty files. They are written once and
kept, because the serving loop writes them: sixty clients that asked on and on had an
upload of 10 MB wait for 17 seconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from types import ModuleType
from typing import Any, Final

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool

from tfs.core.call import StreamCall
from tfs.core.errors import Code, ResourceExhausted, ServingError, Unavailable
from tfs.handlers.message_limits import parse

_MOST_BYTES: Final = 65_536
"""Longest question in bytes. A question names one thing, and is parsed on the serving
loop."""


class ReflectionHandler:
    """Answers ServerReflectionInfo. Confined to the serving loop.

    Args:
        messages: The generated module of either version.
        pool: Where descriptors are looked up.
        services: Full names that ``list_services`` shows.
        streams: Ends the streams that tools keep open.

    """

    def __init__(
        self,
        messages: ModuleType,
        pool: DescriptorPool,
        services: Iterable[str],
        streams: OpenStreams | None = None,
    ) -> None:
        self._messages: Any = messages
        self._pool = pool
        self._services = tuple(sorted(services))
        self._streams = streams or OpenStreams()
        # What is answered with a file and all it imports, by its name. There are no more
        # of these than the pool has files.
        self._files: dict[str, bytes] = {}

    def __call__(self, call: StreamCall) -> None:
        """Answers each request of the stream in order."""
        streams = self._streams

        def on_message(message: bytes | memoryview) -> None:
            try:
                request: Any = parse(
                    self._messages.ServerReflectionRequest, message, _MOST_BYTES
                )
            except ServingError as error:
                streams.fail(call, error)
                return
            if not call.send(self._answer(request)):
                streams.fail(call, ResourceExhausted("the client reads too slowly"))

        if streams.add(call):
            on_message(call.message)
            call.on_message(on_message)
            call.on_half_close(lambda: streams.finish(call))

    def _answer(self, request: Any) -> bytes:
        response = self._messages.ServerReflectionResponse(
            valid_host=request.host, original_request=request
        )
        kind = request.WhichOneof("message_request")
        files = b""
        try:
            if kind == "file_by_filename":
                files = self._written(
                    self._pool.FindFileByName(request.file_by_filename)
                )
            elif kind == "file_containing_symbol":
                files = self._written(self._find(request.file_containing_symbol))
            elif kind == "file_containing_extension":
                extension = request.file_containing_extension
                message = self._pool.FindMessageTypeByName(extension.containing_type)
                found: Any = self._pool.FindExtensionByNumber(
                    message, extension.extension_number
                )
                files = self._written(found.file)
            elif kind == "all_extension_numbers_of_type":
                name = request.all_extension_numbers_of_type
                message = self._pool.FindMessageTypeByName(name)
                numbers = response.all_extension_numbers_response
                numbers.base_type_name = name
                numbers.extension_number.extend(
                    each.number for each in self._pool.FindAllExtensions(message)
                )
            elif kind == "list_services":
                for name in self._services:
                    response.list_services_response.service.add(name=name)
            else:
                self._add_error(response, Code.INVALID_ARGUMENT, "empty request")
        except KeyError as error:
            self._add_error(response, Code.NOT_FOUND, str(error.args[0]))
        written: bytes = response.SerializeToString()
        return written + files  # messages written one after the other are merged

    def _find(self, symbol: str) -> FileDescriptor:
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            # upb's pool does not look inside services, so the method's service is
            # looked up.
            service, _, method = symbol.rpartition(".")
            with contextlib.suppress(KeyError):
                found: Any = self._pool.FindServiceByName(service)
                if method in found.methods_by_name:
                    file: FileDescriptor = found.file
                    return file
            raise

    def _written(self, file: FileDescriptor) -> bytes:
        """Returns the part of an answer with a file and all it imports.

        Each is in it once, the file itself first.
        """
        known = self._files.get(file.name)
        if known is not None:
            return known
        response = self._messages.ServerReflectionResponse()
        seen: set[str] = set()
        waiting = [file]
        while waiting:
            each = waiting.pop()
            if each.name in seen:
                continue
            seen.add(each.name)
            response.file_descriptor_response.file_descriptor_proto.append(
                each.serialized_pb
            )
            waiting.extend(each.dependencies)
        written: bytes = response.SerializeToString()
        self._files[file.name] = written
        return written

    @staticmethod
    def _add_error(response: Any, code: Code, message: str) -> None:
        response.error_response.error_code = int(code)
        response.error_response.error_message = message


class OpenStreams:
    """Streams that clients keep open between questions. Confined to the serving loop.

    Tools keep such streams open for days. Nobody waits for an answer on one, and a drain
    that waited for its end would last until the deadline: so it ends them.
    """

    def __init__(self) -> None:
        self._calls: set[StreamCall] = set()
        self._is_closed = False

    def add(self, call: StreamCall) -> bool:
        """Adds a stream. Returns False, and fails the call, if the server drains."""
        if self._is_closed:
            call.fail(Unavailable("the server is shutting down", retry_after_s=1.0))
            return False
        self._calls.add(call)
        call.on_cancel(lambda: self._calls.discard(call))
        return True

    def finish(self, call: StreamCall) -> None:
        """Ends a stream whose client will ask no more."""
        if call in self._calls:
            self._calls.discard(call)
            call.finish()

    def fail(self, call: StreamCall, error: ServingError) -> None:
        """Ends a stream with an error."""
        self._calls.discard(call)
        call.fail(error)

    def close(self) -> None:
        """Ends all streams with OK, after the answers that were sent before."""
        self._is_closed = True
        for call in list(self._calls):
            self.finish(call)
