# frozen_string_literal: true

module EventMachine
  class << self
    # Returns the class of a handler: a subclass of `klass` as it is, a module as a class that includes it. Checks that it can be
    # made with the arguments, now rather than when the first connection comes.
    def klass_from_handler(klass = Connection, handler = nil, *args)
      found =
        case handler
        when nil then klass
        when Class
          raise ArgumentError, "a handler is a module or a subclass of #{klass.name}, not #{handler.inspect}" unless handler <= klass

          handler
        when Module then class_of_module(klass, handler)
        else raise ArgumentError, "a handler is a module or a subclass of #{klass.name}, not #{handler.inspect}"
        end
      check_arguments(found, args)
      found
    end

    private

    def class_of_module(klass, handler)
      cached = handler.const_get(:EM_CONNECTION_CLASS, false) if handler.const_defined?(:EM_CONNECTION_CLASS, false)
      return cached if cached && cached <= klass

      made = Class.new(klass) { include handler }
      handler.send(:remove_const, :EM_CONNECTION_CLASS) if cached
      handler.const_set(:EM_CONNECTION_CLASS, made)
    end

    def check_arguments(klass, args)
      arity = klass.instance_method(:initialize).arity
      required = arity.negative? ? -arity - 1 : arity
      return if arity.negative? ? args.size >= required : args.size == required

      raise ArgumentError, "wrong number of arguments for #{klass}#initialize (#{args.size} for #{required}#{'+' if arity.negative?})"
    end
  end
end
