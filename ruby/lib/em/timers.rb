# frozen_string_literal: true

# `add_timer` and `cancel_timer` are native.
module EventMachine
  class << self
    def add_periodic_timer(interval, callback = nil, &block)
      EventMachine::PeriodicTimer.new(interval, callback || block)
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
