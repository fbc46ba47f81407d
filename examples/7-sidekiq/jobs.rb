# The team's jobs of Sidekiq, as they were. Producers load this file, too.

require "sidekiq"

url = ENV.fetch("REDIS_URL", "redis://127.0.0.1:6379")
Sidekiq.configure_client { |config| config.redis = { url: url } }

class Receipt
  include Sidekiq::Job
  sidekiq_options retry: 3

  sidekiq_retry_in { |_retries, _problem| 1 }

  sidekiq_retries_exhausted do |job, problem|
    Sidekiq.redis { |redis| redis.rpush("shop:given-up", "#{job["args"].first}: #{problem.message}") }
  end

  def perform(order, fails = 0)
    tried = Sidekiq.redis { |redis| redis.hincrby("shop:tried", order, 1) }
    raise "the printer is busy" if tried <= fails
    Sidekiq.redis { |redis| redis.rpush("shop:receipts", order) }
  end
end
