# frozen_string_literal: true

module EventMachine
  class << self
    # Calls the block once, after a number of seconds. Returns a signature to cancel it with.
    def add_timer(interval, callback = nil, &block)
      callback ||= block
      raise ArgumentError, 'a timer needs a block or a callable' unless callback

      signature = add_oneshot_timer((interval.to_f * 1000).to_i)
      @timers[signature] = callback
      signature
    end

    def add_periodic_timer(interval, callback = nil, &block)
      EventMachine::PeriodicTimer.new(interval, callback || block)
    end

    def cancel_timer(timer_or_signature)
      return timer_or_signature.cancel if timer_or_signature.respond_to?(:cancel)

      if @timers&.key?(timer_or_signature)
        @timers.delete(timer_or_signature)
        cancel_oneshot_timer(timer_or_signature)
      end
      false
    end

    def set_quantum(milliseconds)
      set_timer_quantum(milliseconds.to_i)
    end

    def set_max_timers(count)
      set_max_timer_count(count)
    end

    def get_max_timers
      get_max_timer_count
    end
  end

  # A timer that can be cancelled.
  class Timer
    def initialize(interval, callback = nil, &block)
      @signature = EventMachine.add_timer(interval, callback || block)
    end

    def cancel
      EventMachine.cancel_timer(@signature)
    end
  end

  # Calls back again and again. It is set anew after each call.
  class PeriodicTimer
    attr_accessor :interval

    def initialize(interval, callback = nil, &block)
      @interval = interval
      @code = callback || block
      raise ArgumentError, 'a timer needs a block or a callable' unless @code

      @cancelled = false
      @work = method(:fire)
      schedule
    end

    def cancel
      EventMachine.cancel_timer(@signature)
      @cancelled = true
    end

    private

    def schedule
      @signature = EventMachine.add_timer(@interval, @work)
    end

    def fire
      return if @cancelled

      @code.call
      schedule unless @cancelled
    end
  end
end
