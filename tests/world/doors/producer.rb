# Adds jobs with the real client of Sidekiq, as the tests say.
#
# In: a line of JSON for each call. Out: a line of JSON with its answer.

require "json"
require "jobs"

$stdin.each_line do |line|
  call = JSON.parse(line)
  jid = call["in"] ? Receipt.perform_in(call["in"], *call["args"]) : Receipt.perform_async(*call["args"])
  puts JSON.generate(id: jid)
  $stdout.flush
end
