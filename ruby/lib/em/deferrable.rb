# frozen_string_literal: true

module EventMachine
  # A result that arrives later. Callbacks run in the order in which they were added, at once if the result is there.
  module Deferrable
    autoload :Pool, 'em/deferrable/pool'

    def callback(&block)
      return unless block

      case @deferred_status
      when :succeeded then block.call(*@deferred_args)
      when :failed then nil
      else (@callbacks ||= []).push(block)
      end
      self
    end

    def cancel_callback(block)
      @callbacks&.delete(block)
    end

    def errback(&block)
      return unless block

      case @deferred_status
      when :failed then block.call(*@deferred_args)
      when :succeeded then nil
      else (@errbacks ||= []).push(block)
      end
      self
    end

    def cancel_errback(block)
      @errbacks&.delete(block)
    end

    # Settles the result. A callback may settle it again, which changes the arguments of those that follow.
    def set_deferred_status(status, *args)
      cancel_timeout
      @deferred_status = status
      @deferred_args = args
      case status
      when :succeeded
        run_deferred_handlers(@callbacks)
        @errbacks&.clear
      when :failed
        run_deferred_handlers(@errbacks)
        @callbacks&.clear
      end
    end

    # Fails after a number of seconds, with the given arguments.
    def timeout(seconds, *args)
      cancel_timeout
      @deferred_timeout = EventMachine::Timer.new(seconds) { fail(*args) }
      self
    end

    def cancel_timeout
      return unless @deferred_timeout

      @deferred_timeout.cancel
      @deferred_timeout = nil
    end

    def succeed(*args)
      set_deferred_status(:succeeded, *args)
    end
    alias set_deferred_success succeed

    def fail(*args)
      set_deferred_status(:failed, *args)
    end
    alias set_deferred_failure fail

    # Treats a value, a callable and a deferrable alike: returns the value, or arranges for the callbacks to be called.
    def self.future(arg, callback = nil, errback = nil, &block)
      if arg.respond_to?(:call)
        future(arg.call, callback, errback, &block)
      elsif arg.respond_to?(:set_deferred_status)
        if callback || errback
          arg.callback(&callback) if callback
          arg.errback(&errback) if errback
        elsif block
          arg.callback(&block)
        end
        arg
      elsif callback
        callback.call(arg)
      elsif block
        block.call(arg)
      else
        arg
      end
    end

    private

    def run_deferred_handlers(handlers)
      while (handler = handlers&.shift)
        handler.call(*@deferred_args)
      end
    end
  end

  class DefaultDeferrable
    include Deferrable
  end
end
