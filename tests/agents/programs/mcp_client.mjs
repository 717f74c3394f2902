// A client of one of the TypeScript SDKs: mcp_client.mjs PACKAGE URL CALLS
// CALLS: JSON, a list of [tool, arguments]. Prints the version of the protocol, the tools' names and the results.

const [name, url, calls] = process.argv.slice(2);

async function load() {
  if (name === "@modelcontextprotocol/client") {
    return import("@modelcontextprotocol/client");
  }
  const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
  const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
  return { Client, StreamableHTTPClientTransport };
}

const { Client, StreamableHTTPClientTransport } = await load();
// By default the newer one still shakes hands.
const options = name === "@modelcontextprotocol/client" ? { versionNegotiation: { mode: "auto" } } : {};
const client = new Client({ name: "toy", version: "1.0.0" }, options);
const headers = { Authorization: `Bearer ${process.env.GATEWAY_KEY}` };
const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } });
await client.connect(transport);
const { tools } = await client.listTools();
const results = [];
for (const [tool, given] of JSON.parse(calls)) {
  const { content, isError } = await client.callTool({ name: tool, arguments: given });
  results.push({ text: content.map(({ text }) => text).join("\n"), isError: isError ?? false });
}
// The older one only tells its transport.
const protocol = client.getNegotiatedProtocolVersion?.() ?? transport.protocolVersion;
await client.close();
console.log(JSON.stringify({ protocol, tools: tools.map((each) => each.name), results }));
