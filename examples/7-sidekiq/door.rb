# Runs jobs of Sidekiq that tqhost sends by HTTP, in the place of Sidekiq. In Rails it is an action.
#
#   WEBHOOK_SECRET=whsec_… PORT=3000 ruby door.rb
#
# In: requests of `http-call` to /tasks/QUEUE. Out: an answer that says what becomes of the job. A job that
# fails comes again as often as its class says, after the time that Sidekiq would wait.

require "base64"
require "json"
require "openssl"
require "webrick"
require_relative "jobs"

KEY = Base64.strict_decode64(ENV.fetch("WEBHOOK_SECRET").delete_prefix("whsec_"))
# Sidekiq's default, for `retry: true`.
RETRIES = 25

# Whether tqhost has signed the request, in the last five minutes.
def signed?(request, body)
  id, time, signatures = %w[id timestamp signature].map { |name| request["webhook-#{name}"].to_s }
  return false if (Time.now.to_i - time.to_i).abs > 300
  own = "v1," + Base64.strict_encode64(OpenSSL::HMAC.digest("SHA256", KEY, "#{id}.#{time}.#{body}"))
  signatures.split.any? { |signature| OpenSSL.secure_compare(signature, own) }
end

# Runs a job. Returns the status of the answer, its headers, and its text.
def run(job, attempt)
  kind = Object.const_get(job["class"]) if Object.const_defined?(job["class"])
  return [422, {}, "there is no job #{job["class"]}"] unless kind.is_a?(Class) && kind.include?(Sidekiq::Job)
  worker = kind.new
  worker.jid = job["jid"]
  Sidekiq.server_middleware.invoke(worker, job, job["queue"]) { worker.perform(*job["args"]) }
  [200, {}, ""]
rescue Exception => problem # As Sidekiq does: a NotImplementedError is no StandardError.
  failed(kind, job, attempt, problem)
end

# Calls a block of the job's class. An error in it must not run the job again.
def guarded
  yield
rescue StandardError => problem
  warn "#{problem.class}: #{problem.message}"
  nil
end

def failed(kind, job, attempt, problem)
  # A job that Sidekiq ran before counts its retries from 0.
  before = job["retry_count"] ? job["retry_count"] + 1 : 0
  retries = before + attempt - 1
  most = { true => RETRIES, false => 0, nil => RETRIES }.fetch(job["retry"], job["retry"])
  text = "#{problem.class}: #{problem.message}"
  return [422, {}, text] unless kind.is_a?(Class)
  if retries >= most
    guarded { kind.sidekiq_retries_exhausted_block&.call(job, problem) if job["retry"] }
    return [422, {}, text]
  end
  wait = guarded { kind.sidekiq_retry_in_block&.call(retries, problem) }
  wait = retries**4 + 15 + rand(10) * (retries + 1) unless wait.is_a?(Numeric)
  [500, { "Retry-After" => wait.to_i.to_s }, text]
end

server = WEBrick::HTTPServer.new(
  BindAddress: "127.0.0.1", Port: ENV.fetch("PORT", "3000").to_i, AccessLog: [],
  Logger: WEBrick::Log.new($stderr, WEBrick::Log::WARN)
)
server.mount_proc("/tasks/") do |request, response|
  body = request.body.to_s
  # WEBrick would send 200 if anything got past the lines below.
  response.status = 500
  status, headers, text = [401, {}, "no signature matches"]
  if signed?(request, body)
    task = JSON.parse(body)
    status, headers, text = run(JSON.parse(task["fields"]["data"]), task["attempt"])
  end
  response.status = status
  headers.each { |name, value| response[name] = value }
  response["Content-Type"] = "text/plain; charset=utf-8"
  response.body = text
end
%w[INT TERM].each { |signal| trap(signal) { server.shutdown } }
puts JSON.generate(port: server.listeners.first.addr[1].to_s)
$stdout.flush
server.start
