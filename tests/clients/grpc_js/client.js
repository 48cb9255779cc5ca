// Makes the calls that peers.py asks for with @grpc/grpc-js, and says what came back.
//
//     node client.js ADDRESS < calls.json > outcomes.json
//
// Messages are bytes, base64 in the JSON: what is in them is Python's to know.
"use strict";

const grpc = require("@grpc/grpc-js");

const bytes = (value) => value;
const address = process.argv[2];
const calls = JSON.parse(require("fs").readFileSync(0, "utf8"));
const client = new grpc.Client(address, grpc.credentials.createInsecure());

function make(call) {
  const metadata = new grpc.Metadata();
  metadata.set("x-peer", "grpc-js");
  metadata.set("x-peer-bin", Buffer.from([0, 255]));
  const options = { deadline: Date.now() + call.timeout_ms };
  const request = Buffer.from(call.message, "base64");
  return new Promise((resolve) => {
    if (call.is_stream) {
      const stream = client.makeServerStreamRequest(
        call.path, bytes, bytes, request, metadata, options);
      let first = null;
      stream.on("data", (reply) => {
        first = first || reply.toString("base64");
        stream.cancel();
      });
      stream.on("error", () => {}); // the status says it, too
      stream.on("status", (status) => resolve({ code: status.code, reply: first }));
      return;
    }
    client.makeUnaryRequest(
      call.path, bytes, bytes, request, metadata, options,
      (error, reply) => resolve({
        code: error ? error.code : 0,
        details: error ? error.details : "",
        reply: reply ? reply.toString("base64") : null,
      }));
  });
}

Promise.all(calls.map(make)).then((outcomes) => {
  process.stdout.write(JSON.stringify(outcomes));
  client.close();
});
