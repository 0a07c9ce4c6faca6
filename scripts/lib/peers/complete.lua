-- Completes a call: a bare body gets its envelope, a message its id. What is whole passes as it came.
local json = require "cjson.safe"

ngx.req.read_body()
local call = json.decode(ngx.req.get_body_data() or "")
if type(call) ~= "table" then
  ngx.status = 400
  ngx.header.content_type = "application/json"
  ngx.print('{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"not JSON"}}')
  return ngx.exit(400)
end
local completed = false
if not call.jsonrpc then
  call = { jsonrpc = "2.0", id = ngx.var.request_id, method = "message/send", params = call }
  completed = true
end
local message = type(call.params) == "table" and call.params.message
if type(message) == "table" and not message.messageId then
  message.messageId = ngx.var.request_id
  completed = true
end
if completed then
  ngx.req.set_body_data(json.encode(call))
end
