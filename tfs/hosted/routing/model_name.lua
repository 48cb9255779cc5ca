-- Puts the name of a request's model into the header x-model, by which routes are found. A
-- caller that sends the header itself is taken at its word, and its body is not waited for.

local ANSWERED = {PATHS}
local MULTI_INFERENCE = "/tensorflow.serving.PredictionService/MultiInference"

-- Returns a varint and the index behind it, in a string of bytes.
local function varint(bytes, at)
  local value, factor = 0, 1
  while at <= #bytes do
    local byte = bytes:byte(at)
    value = value + (byte % 128) * factor
    at = at + 1
    if byte < 128 then return value, at end
    factor = factor * 128
  end
  return nil, at
end

-- Returns where the last field with a number, a string or message, begins and ends.
local function field(body, start, stop, wanted)
  local at, first, last = start, nil, nil
  while at < stop do
    local bytes = body:getBytes(at, math.min(20, stop - at))
    local tag, behind = varint(bytes, 1)
    if tag == nil then return nil end
    local kind, size = tag % 8, 0
    if kind == 2 then size, behind = varint(bytes, behind)
    elseif kind == 0 then size, behind = 0, select(2, varint(bytes, behind))
    elseif kind == 1 then size = 8
    elseif kind == 5 then size = 4
    else return nil end
    if size == nil then return nil end
    local begins = at + behind - 1
    if begins + size > stop then return nil end
    if kind == 2 and (tag - kind) / 8 == wanted then first, last = begins, begins + size end
    at = begins + size
  end
  return first, last
end

function envoy_on_request(handle)
  local path = handle:headers():get(":path")
  if not ANSWERED[path] then
    return handle:respond({
      [":status"] = "200",
      ["content-type"] = "application/grpc",
      ["grpc-status"] = "12",
      ["grpc-message"] = "a fleet's router does not answer this method",
    })
  end
  if handle:headers():get("x-model") then return end
  local body = handle:body()
  -- What names no model, and what is compressed, is for the router beside Envoy.
  if body == nil or body:length() < 5 or body:getBytes(0, 1):byte() ~= 0 then return end
  local start, stop = 5, body:length()
  local levels = {1, 1}  -- model_spec, name
  if path == MULTI_INFERENCE then levels = {1, 1, 1} end
  if path:find("/inference.", 1, true) == 1 then levels = {1} end  -- Open Inference Protocol
  for _, number in ipairs(levels) do
    start, stop = field(body, start, stop, number)
    if start == nil then return end
  end
  handle:headers():add("x-model", body:getBytes(start, stop - start))
end
